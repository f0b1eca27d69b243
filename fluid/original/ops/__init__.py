"""The table of ops: compute each op of PaddlePaddle with fluid's layers, one module for each family."""
