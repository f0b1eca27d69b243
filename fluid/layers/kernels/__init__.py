"""Forms of layers, each chosen by shapes and platform, beside the plain form that they equal."""
