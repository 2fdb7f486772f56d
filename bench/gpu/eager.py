# SPDX-License-Identifier: Apache-2.0
"""PyTorch as it starts and runs: seconds from the interpreter's start to the
first kernel's end, and milliseconds a ResNet-50 inference (batch 1, fp16, eager).
One JSON line.

usage: eager.py START_EPOCH [REQUESTS]   (0 requests: start-up alone)
"""
import json
import sys
import time

start = float(sys.argv[1])
requests = int(sys.argv[2]) if len(sys.argv) > 2 else 300

before_import = time.time()
import torch  # noqa: E402

imported = time.time()
x = torch.ones(1, device="cuda")
torch.cuda.synchronize()
first = time.time()
out = {"to_first_kernel_s": first - start, "import_s": imported - before_import, "import_to_first_kernel_s": first - imported}
if requests:
    import torchvision

    model = torchvision.models.resnet50().eval().half().cuda()
    image = torch.randn(1, 3, 224, 224, device="cuda", dtype=torch.half)
    times = []
    with torch.inference_mode():
        for i in range(requests + 50):
            t = time.perf_counter()
            model(image)
            torch.cuda.synchronize()
            if i >= 50:
                times.append(time.perf_counter() - t)
    times.sort()
    out["p10_ms"] = 1e3 * times[len(times) // 10]
    out["p50_ms"] = 1e3 * times[len(times) // 2]
    out["p99_ms"] = 1e3 * times[int(len(times) * 0.99)]
    out["mean_ms"] = 1e3 * sum(times) / len(times)
print(json.dumps(out), flush=True)
