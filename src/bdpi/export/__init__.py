"""Trained policies for other programs: ONNX for any runtime, a C header for microcontrollers.

>>> import bdpi
>>> from bdpi.export import export_c, export_onnx
>>> agent = bdpi.BDPI("MlpPolicy", "CartPole-v1")
>>> export_onnx(agent, "policy.onnx")  # doctest: +SKIP
>>> export_c(agent, "policy.h")  # doctest: +SKIP

What is exported goes from observations as the environment gives them to the most probable action in the environment's
numbers: by the actor, the votes of the critics, or a table.
"""

from bdpi.export.c import export_c
from bdpi.export.onnx_file import check_onnx, export_onnx

__all__ = ["check_onnx", "export_c", "export_onnx"]
