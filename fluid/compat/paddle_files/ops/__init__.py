"""The table of ops: for each type of PaddlePaddle op, a function that computes the op with fluid's layers."""
