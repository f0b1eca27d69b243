"""The table of ops: for each PaddlePaddle op a row, which is a function that computes the op with fluid's layers."""
