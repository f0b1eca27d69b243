"""Layers for object detection: box encoding, matching, sampling, losses, RoI pooling, and non-maximum suppression."""
