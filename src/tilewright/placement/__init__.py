"""`place`: which parts of a model run where, decided by measured costs.

placement = tw.place("resnet18.onnx", [x], target="opencl")             # kernel by kernel: the device or the host
placement = tw.place("detector.onnx", [x], target=["opencl", "accel"])  # the graph over several devices and the host
print(placement)                     # where, and what it takes there and elsewhere
exe = placement.compile()            # the model so placed
exe.timeline(x).save("run.json")     # what ran where and when, for a trace viewer
"""

from tilewright.placement.place import place

__all__ = ["place"]
