"""Random programs on eight devices; `test_eight_devices.py` runs this file in a process with eight devices."""

import pytest
from differential.laws import LAWS
from differential.test_differential import SEEDS, check, drawn

FITTING = [seed for seed in range(SEEDS) if LAWS["devices"].fits(drawn(seed))]


@pytest.mark.full
@pytest.mark.parametrize("seed", FITTING[::12])
def test_random_programs_train_as_on_one_device(seed):
    check(drawn(seed), seed, "devices")
