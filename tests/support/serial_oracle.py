"""What a serial greedy decode gives: the whole of it, over the target function alone. Imports nothing of spanfold."""


def serial(best, prompt, *, context, max_tokens=None, stops=(), min_tokens=0, stop_when=None):
    """``best(prefix, masked) -> id``; returns (tokens, finish reason, limit)."""
    room = context - len(prompt)
    limit, most = ("context", room) if max_tokens is None or max_tokens > room else ("max_tokens", max_tokens)
    out = []
    while len(out) < most:
        out.append(best((*prompt, *out), stops if len(out) < min_tokens else ()))
        if out[-1] in stops:
            return out, "stop_token", None
        if stop_when is not None and stop_when(out[-1], len(out) - 1):
            return out, "stop_when", None
    return out, "length", limit
