"""Run a policy without Python: as a C header, and as ONNX (pip install "bdpi[export]" onnxruntime)."""

import numpy as np
import onnxruntime

import bdpi
from bdpi.export import check_onnx, export_c, export_onnx

STEPS = 300

agent = bdpi.BDPI("MlpPolicy", "CartPole-v1", seed=0)
agent.learn(STEPS)

export_c(agent, "pole.h")
with open("pole.h", encoding="utf-8") as header:
    print(next(line.strip() for line in header if "pole_act(" in line))

export_onnx(agent, "pole.onnx")
print(f"probabilities differ from the agent's by {check_onnx(agent, 'pole.onnx'):.1e} at most")
session = onnxruntime.InferenceSession("pole.onnx")
seen = np.array([[0.0, 0.1, 0.02, -0.1]], np.float32)
action, probabilities = session.run(["action", "probabilities"], {session.get_inputs()[0].name: seen})
print(f"action {action[0]}, probabilities {probabilities[0].round(2)}")
