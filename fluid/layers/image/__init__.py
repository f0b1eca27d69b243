"""Layers for images and volumes: convolution, pooling, resizing, and sampling at computed positions."""
