import numpy as np
import torch

from bdpi.learner.staging import Staging


def test_arrays_of_several_types_travel_together():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = {"mask": ((3,), np.bool_), "rates": ((2, 4), np.float64), "batch": ((5, 1), np.int32)}
    staging = Staging(parts, device)
    staging.arrays["mask"][:] = True, False, True
    staging.arrays["rates"][1] = 0.1, 0.2, 0.3, 0.4
    staging.arrays["batch"][4] = -7
    staging.send()
    for name, array in staging.arrays.items():
        np.testing.assert_array_equal(staging.tensors[name].cpu().numpy(), array)
    staging.tensors["batch"].add_(1)
    staging.receive()
    if device.type == "cuda":
        torch.cuda.synchronize()
    assert staging.arrays["batch"].ravel().tolist() == [1, 1, 1, 1, -6]
    assert staging.arrays["mask"].tolist() == [True, False, True]
