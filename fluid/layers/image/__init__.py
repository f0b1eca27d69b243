"""Layers on images and volumes: convolution, pooling, resizing, sampling."""
