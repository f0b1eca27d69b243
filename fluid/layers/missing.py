"""Names of Fluid, Keras and PyTorch that are not here, and what takes their place."""

import sys

from fluid import errors

_INSTEAD = {
    "BatchNorm1d": "layers.batch_norm(x)",
    "BatchNorm2d": "layers.batch_norm(x)",
    "BatchNormalization": "layers.batch_norm(x)",
    "BCEWithLogitsLoss": "layers.sigmoid_cross_entropy_with_logits(logits, label)",
    "Conv2D": "layers.conv2d(x, num_filters=16, filter_size=3)",
    "Conv2d": "layers.conv2d(x, num_filters=16, filter_size=3)",
    "CrossEntropyLoss": "layers.softmax_with_cross_entropy(logits, label), and layers.mean of it",
    "Dense": "layers.fc(x, size=10), with act= for its activation",
    "Dropout": "layers.dropout(x, dropout_prob=0.5)",
    "Embedding": "layers.embedding(ids, size=[1000, 32])",
    "Flatten": "layers.flatten(x), which layers.fc does by itself",
    "GRU": "layers.dynamic_gru(layers.fc(x, size=3 * 32), size=32)",
    "Input": 'layers.data("x", shape=[4]), without the batch size',
    "LSTM": "layers.dynamic_lstm(layers.fc(x, size=4 * 32), size=4 * 32)",
    "LayerNorm": "layers.layer_norm(x)",
    "LayerNormalization": "layers.layer_norm(x)",
    "Linear": "layers.fc(x, size=10), which finds the number of inputs by itself",
    "MSELoss": "layers.square_error_cost(prediction, y), and layers.mean of it",
    "MaxPool2d": "layers.pool2d(x, pool_size=2, pool_stride=2)",
    "MaxPooling2D": "layers.pool2d(x, pool_size=2, pool_stride=2)",
    "ReLU": 'layers.relu(x), or act="relu"',
    "Softmax": 'layers.softmax(x), or act="softmax"',
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
    known = vars(sys.modules["fluid.layers"]).get("__all__", ())  # not there yet while it is imported
    raise errors.missing_name("module 'fluid.layers'", name, known, _INSTEAD)
