"""OpenTelemetry observers of the engine's events.

The observer that turns events into spans is not there yet. Until it is, any callable that takes a
``spanfold.engine.Record`` can be passed as an observer of a ``Decoder`` and may open spans itself.
"""

__all__: list[str] = []
