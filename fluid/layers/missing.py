"""Names of Fluid that are not here, and what takes their place."""

_INSTEAD = {
    "IfElse": "layers.where(condition, x, y) to choose for each example, layers.cond(pred, true_fn, false_fn) for all",
    "Switch": "layers.case([(condition, lambda: value), ...], default=lambda: value), which returns the value that a "
    "Switch would assign",
    "deformable_roi_pooling": "layers.roi_align, or layers.prroi_pool, through which regions receive a gradient",
    "detection_map": "fluid.metrics.DetectionMAP, a metric for trainer.test(metrics=...)",
    "generate_mask_labels": "masks that the reader draws from the polygons, and layers.roi_align to pool their regions",
    "locality_aware_nms": "layers.multiclass_nms, which does not average boxes",
    "roi_perspective_transform": "layers.roi_align for upright regions, layers.grid_sampler for rotated ones",
    "While": "layers.while_loop(cond, body, loop_vars), which returns the values that the block would change",
}


def __getattr__(name: str) -> None:
    instead = f"; use {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise AttributeError(f"module 'fluid.layers' has no attribute {name!r}{instead}", name=name)
