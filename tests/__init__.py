"""Makes `import tests` find this folder, even if a dependency (tf2onnx) has installed a package of
that name."""
