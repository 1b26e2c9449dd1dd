"""spanfold.backends: what the engine decodes on. Each backend is a package of its own; importing this one loads none of them."""

__all__: list[str] = []
