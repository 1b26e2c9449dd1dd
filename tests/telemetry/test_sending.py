"""Sending spans and metrics: to a collector that decodes them, to one that refuses, to none."""

import gzip
import http.server
import json
import logging
import socket
import threading

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as otlp_metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from otel_bench import Otel, record, spans_of

from spanfold.engine import Decoder
from spanfold.engine.cli import main
from spanfold.engine.cli.commands import parser
from spanfold.engine.cli.terminal import Terminal
from spanfold.engine.trace import TraceWriter
from spanfold.telemetry import sending
from spanfold.telemetry.commands import watching
from spanfold.telemetry.formats import BATCH
from spanfold.telemetry.rounds import Options
from spanfold.telemetry.sending import PATIENCE_S, endpoint, live_observer


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "run.jsonl"
    record(path)
    return path


class Collector:
    """Receives OTLP over HTTP and decodes the real protobuf."""

    def __init__(self, status=200):
        self.spans, self.metrics, self.paths, self.resources = [], {}, [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if status == 200:
                    outer.take(self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, path, body):
        self.paths.append(path)
        if path == "/v1/traces":
            request = otlp.ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                self.resources.append({one.key: one.value.string_value for one in resource.resource.attributes})
                for scope in resource.scope_spans:
                    self.spans += scope.spans
        else:
            request = otlp_metrics.ExportMetricsServiceRequest.FromString(body)
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics |= {metric.name: metric for metric in scope.metrics}

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def plain(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(plain(one) for one in value.array_value.values)
    return getattr(value, kind)


def test_spans_arrive_at_a_collector_with_ids_times_and_attributes(trace, capsys):
    with Collector() as collector:
        assert main(["spans", str(trace), "--otlp", collector.url]) == 0
    wanted = spans_of(trace)
    assert f"sent {len(wanted)} spans" in capsys.readouterr().err
    assert [
        (span.trace_id, span.span_id, span.parent_span_id, span.name, span.start_time_unix_nano, span.end_time_unix_nano)
        for span in collector.spans
    ] == [
        (
            span.trace_id.to_bytes(16, "big"),
            span.span_id.to_bytes(8, "big"),
            b"" if span.parent_id is None else span.parent_id.to_bytes(8, "big"),
            span.name,
            span.start_ns,
            span.end_ns,
        )
        for span in wanted
    ]
    for sent, span in zip(collector.spans, wanted, strict=True):
        assert {one.key: plain(one.value) for one in sent.attributes} == {
            name: tuple(value) if isinstance(value, (tuple, list)) else value for name, value in span.attributes.items()
        }
    assert collector.resources[0]["service.name"] == "spanfold"


def test_a_long_trace_is_sent_in_several_requests(tmp_path):
    path = tmp_path / "long.jsonl"
    with TraceWriter(path) as writer:
        Otel().bench("summary", decoder={"recorder": writer}).decoder.generate([1, 2, 3], max_tokens=900, ignore_eos=True)
    with Collector() as collector:
        assert main(["spans", str(path), "--otlp", f"{collector.url}/v1/traces"]) == 0
    assert len(collector.spans) > BATCH and len(collector.paths) == -(-len(collector.spans) // BATCH)


def test_a_collector_that_refuses_is_one_line(trace, capsys, caplog):
    with Collector(status=400) as collector:
        assert main(["spans", str(trace), "--otlp", collector.url]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"spanfold spans: {collector.url}/v1/traces took 0 spans") and error.count("\n") == 1
    assert not caplog.records and not logging.getLogger("opentelemetry").handlers


def test_generate_sends_spans_and_metrics_while_it_decodes(capsys):
    with Collector() as collector:
        arguments = ["generate", "hi", "--backend", "scripted", "--max-draft", "3", "--max-tokens", "20", "--json"]
        assert main([*arguments, "--otlp", collector.url]) == 0
    stats = json.loads(capsys.readouterr().out)["stats"]
    turn = next(span for span in collector.spans if span.name == "text_completion toy")
    attributes = {one.key: plain(one.value) for one in turn.attributes}
    assert attributes["gen_ai.usage.output_tokens"] == stats["tokens"]
    assert len(collector.spans) == 1 + stats["forwards"], "the level rounds"
    assert collector.metrics["spanfold.tokens"].sum.data_points
    assert collector.metrics["spanfold.verify.duration"].histogram.data_points[0].count > 0
    assert set(collector.paths) == {"/v1/traces", "/v1/metrics"}


def test_generate_takes_the_environments_collector(monkeypatch, capsys):
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        arguments = ["generate", "hi", "--backend", "scripted", "--max-tokens", "4", "--otel", "--otel-level", "summary"]
        assert main(arguments) == 0
    assert [span.name for span in collector.spans] == ["text_completion toy"]


def test_generate_goes_on_where_no_collector_listens(capsys):
    with Collector(status=400) as collector:
        arguments = ["generate", "hi", "--backend", "scripted", "--max-tokens", "8", "--otlp", collector.url]
        assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "8 tokens" in out
    assert err.count("\n") == 1 and "did not take" in err and ", nor the metrics: " in err and "Traceback" not in err


def nobody():
    """A URL at which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}"


def test_generate_says_in_one_line_that_nobody_listens(monkeypatch, capsys):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    url = nobody()
    assert main(["generate", "hi", "--backend", "scripted", "--max-tokens", "8", "--otlp", url]) == 0
    out, err = capsys.readouterr()
    assert "8 tokens" in out and err.count("\n") == 1
    assert err.startswith(f"spanfold generate: {url}/v1/traces did not take ") and ", nor the metrics: " in err


def test_a_decode_that_fails_says_so_too(monkeypatch, capsys):
    """Its spans are wanted most of all."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    arguments = ["generate", "hi", "--backend", "scripted", "--model", "nowhere", "--otlp", nobody()]
    with pytest.raises(RuntimeError, match="fails"), watching(parser().parse_args(arguments), Terminal()) as observer:
        with Decoder(Otel().bench().runtime, observers=[observer]) as decoder:
            decoder.generate([1, 2, 3], max_tokens=4)
        raise RuntimeError("fails")
    assert "did not take" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "wanted"), [(None, PATIENCE_S), ("", PATIENCE_S), ("0.5", 0.5), ("30", 30.0)])
def test_every_exporter_of_generate_has_the_bound_of_a_few_seconds_or_the_environments(monkeypatch, given, wanted):
    if given is None:
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_TIMEOUT", raising=False)
    else:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", given)
    seen = []
    for exporter in (OTLPSpanExporter, OTLPMetricExporter):

        def made(self, *args, before=exporter.__init__, timeout=None, **kwargs):
            seen.append(timeout)
            before(self, *args, timeout=timeout, **kwargs)

        monkeypatch.setattr(exporter, "__init__", made)
    with Collector() as collector, live_observer(collector.url, Options(), 10):
        pass
    assert seen == [wanted, wanted] and PATIENCE_S <= 5


@pytest.mark.parametrize("given", ["soon", "0", "-1", "inf", "nan"])
def test_a_timeout_that_is_none_is_named(monkeypatch, capsys, given):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", given)
    assert main(["generate", "hi", "--backend", "scripted", "--otel"]) == 2
    error = capsys.readouterr().err
    assert f"OTEL_EXPORTER_OTLP_TIMEOUT must be a number of seconds above 0, not {given!r}" in error and error.count("\n") == 1


def test_after_the_decode_the_first_failure_and_the_end_of_patience_give_up_the_rest(monkeypatch):
    """However many batches wait: each one would be tried to its timeout."""
    now, asked = [100.0], []
    monkeypatch.setattr(sending.time, "monotonic", lambda: now[0])
    patience = sending._Patience(4)

    def answer(result):
        return patience.tried(lambda: asked.append(result) or result, "failed")

    assert [answer("failed"), answer("sent")] == ["failed", "sent"], "while it decodes, all is tried"
    patience.hurry()
    assert answer("sent") == "sent"
    now[0] = 104.0
    assert answer("sent") == "failed", "too late"
    patience.hurry()
    assert [answer("failed"), answer("sent")] == ["failed", "failed"]
    assert asked == ["failed", "sent", "sent", "failed"]


@pytest.mark.parametrize("level", ["summary", "rounds", "debug"])
def test_a_level_for_spans_that_are_not_sent_is_refused(capsys, level):
    assert main(["generate", "hi", "--backend", "scripted", "--max-tokens", "4", "--otel-level", level]) == 2
    out, error = capsys.readouterr()
    assert "add --otel or --otlp URL" in error and error.count("\n") == 1 and not out


@pytest.mark.parametrize("url", ["", "localhost:4318", "ftp://c"])
def test_what_is_no_collectors_url_is_refused(trace, capsys, monkeypatch, url):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")
    generate = ["generate", "hi", "--backend", "scripted"]
    for arguments in (["spans", str(trace)], generate, [*generate, "--otel"]):
        assert main([*arguments, "--otlp", url]) == 2
        out, error = capsys.readouterr()
        assert f"--otlp must be a collector's URL, http://localhost:4318 for example, not {url!r}" in error
        assert error.count("\n") == 1 and not out


@pytest.mark.parametrize("url", ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces", "http://c:4318/v1/metrics"])
def test_a_collectors_url_may_name_the_base_or_a_signal(url):
    assert endpoint(url, "traces") == "http://c:4318/v1/traces"
    assert endpoint(url, "metrics") == "http://c:4318/v1/metrics"
