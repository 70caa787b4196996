"""Makes `tests` this folder, also where a dependency (tf2onnx) installs a folder of that name."""
