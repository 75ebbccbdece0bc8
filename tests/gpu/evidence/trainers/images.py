"""Image classifier whose images are decoded by the loader's workers: with one worker the GPU waits."""

import sys
import time
import zlib

import device
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, Dataset

config = yaml.safe_load(open(sys.argv[1]))
data, training = config["data"], config["training"]
SIZE, WIDTH = (32, 4) if device.IS_FAKE else (416, 48)
READ_S = 0.014 if device.IS_FAKE else 0.0  # of an image, from a slow disk, in place of a CPU's work
SAMPLE_S = 0.002  # of the fake GPU


class Images(Dataset):
    """Compressed images, decoded, flipped and normalized when they are read."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        small = torch.randint(0, 256, (16, 3, SIZE // 4, SIZE // 4), generator=generator, dtype=torch.uint8)
        large = nn.functional.interpolate(small.float(), size=SIZE, mode="bilinear").to(torch.uint8)
        self.images = [zlib.compress(bytes(image.flatten().tolist()), 6) for image in large]

    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        time.sleep(READ_S)
        raw = bytearray(zlib.decompress(self.images[index % len(self.images)]))
        image = torch.frombuffer(raw, dtype=torch.uint8).view(3, SIZE, SIZE).float().div_(255)
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        top, left = torch.randint(0, SIZE // 8, (2,)).tolist()
        image = image[:, top : top + SIZE * 7 // 8, left : left + SIZE * 7 // 8]
        return (image - image.mean()) / image.std(), index % 10


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=2, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        block(3, WIDTH),
        block(WIDTH, 2 * WIDTH),
        block(2 * WIDTH, 4 * WIDTH),
        block(4 * WIDTH, 8 * WIDTH),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * WIDTH, 10),
    ).to(device.NAME)
    if training["channels_last"]:
        model = model.to(memory_format=torch.channels_last)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = training["tf32"]
    optimizer = torch.optim.SGD(model.parameters(), lr=training["learning_rate"], momentum=0.9)
    loader = DataLoader(
        Images(),
        batch_size=data["batch_size"],
        shuffle=True,
        num_workers=data["num_workers"],
        prefetch_factor=data["prefetch_factor"] if data["num_workers"] else None,
        pin_memory=data["pin_memory"],
        persistent_workers=data["num_workers"] > 0,
    )
    pace = device.Pace(float(sys.argv[2]) if len(sys.argv) > 2 else float("inf"))
    for epoch in range(training["epochs"]):
        for images, labels in loader:
            images = images.to(device.NAME, non_blocking=True)
            labels = labels.to(device.NAME, non_blocking=True)
            if training["channels_last"]:
                images = images.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.NAME, dtype=torch.bfloat16, enabled=training["bf16"] and not device.IS_FAKE):
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            device.kernels(SAMPLE_S * len(labels))
            if pace.is_over(len(labels)):
                return
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
