"""Layers for object detection: boxes, matching, sampling, losses, pooling of regions, and suppression."""
