"""write_scripts.py FOLDER: models as TorchScript, and how PyTorch trains them, for train_script.

For each case FOLDER gets CASE.pt, the untrained model as torch.jit.save writes it; its forward(x, y) returns the
loss. CASE.run.pt is a dict for torch::pickle_load:
- unit: the class whose modules train_script makes units, and units: how many there are with the rest
- lr: of SGD, with momentum 0.9
- x, y: one batch per step and rank [STEPS, RANKS, ...]; held_x, held_y: a batch per rank for a loss in eval mode
- parameters: by name, after training
- buffers: by name, for each rank [RANKS, ...], after training and the loss in eval mode
- held_loss: of each rank [RANKS]
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

RANKS = 2
STEPS = 10
BATCH = 6


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inner + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 16, 2), BasicBlock(16, 16, 1))
        self.fc = nn.Linear(16, 10)
        self.stem[1].eval()  # as in fine-tuning: its statistics stay as they are

    def forward(self, x, y):
        x = self.blocks(self.stem(x)).mean((2, 3))
        return F.cross_entropy(self.fc(x), y)


class Layer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.0, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.0))
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x):
        attended, _ = self.attention(x, x, x, need_weights=False)
        x = self.norm1(x + attended)
        return self.norm2(x + self.mlp(x))


class Encoder(nn.Module):
    """As BERT: the projection back to tokens is the embedding."""

    def __init__(self, tokens: int = 41, places: int = 12, width: int = 32):
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.places = nn.Embedding(places, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(3)])
        self.head = nn.Linear(width, tokens)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.1)
        self.register_buffer("ids", torch.arange(places))

    def forward(self, x, y):
        hidden = self.norm(self.tokens(x) + self.places(self.ids))
        for layer in self.layers:
            hidden = layer(hidden)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), y.flatten())


class Recurrent(nn.Module):
    """Its LSTMs hold their weights twice: as parameters, and in a list."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(41, 16)
        self.first = nn.LSTM(16, 24, num_layers=2, batch_first=True)
        self.second = nn.LSTM(24, 24, batch_first=True)
        self.head = nn.Linear(24, 41)

    def forward(self, x, y):
        hidden, _ = self.first(self.embedding(x))
        hidden, _ = self.second(hidden)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), y.flatten())


def image_batches(*count):
    return torch.randn(*count, BATCH, 3, 12, 12), torch.randint(10, (*count, BATCH))


def token_batches(*count):
    x = torch.randint(41, (*count, BATCH, 12))
    return x, (x + 1) % 41


def average_gradients(replicas):
    for same in zip(*(replica.parameters() for replica in replicas)):
        mean = sum(parameter.grad for parameter in same) / len(same)
        for parameter in same:
            parameter.grad = mean.clone()


def train(path, x, y, lr):
    """One copy of the model per rank, as data-parallel ranks have: buffers go their own ways, parameters do not."""
    replicas = [torch.jit.load(path) for _ in range(RANKS)]
    optimizers = [torch.optim.SGD(replica.parameters(), lr=lr, momentum=0.9) for replica in replicas]
    for step in range(STEPS):
        for rank, replica in enumerate(replicas):
            replica(x[step, rank], y[step, rank]).backward()
        average_gradients(replicas)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return replicas


def write(folder, name, model, unit, units, lr, batches):
    x, y = batches(STEPS, RANKS)
    held_x, held_y = batches(RANKS)
    path = folder / f"{name}.pt"
    torch.jit.save(model, path)
    replicas = train(path, x, y, lr)
    with torch.no_grad():
        held_loss = torch.stack([replica.eval()(held_x[rank], held_y[rank]) for rank, replica in enumerate(replicas)])
    parameters = {key: value.detach().clone() for key, value in replicas[0].named_parameters()}
    buffers = {key: torch.stack([dict(replica.named_buffers())[key] for replica in replicas])
               for key, _ in model.named_buffers()}
    torch.save(dict(unit=unit, units=units, lr=lr, x=x, y=y, held_x=held_x, held_y=held_y, parameters=parameters,
                    buffers=buffers, held_loss=held_loss), folder / f"{name}.run.pt")


def main(folder):
    torch.set_num_threads(1)
    for name, make, unit, units, lr, batches in (("resnet", ResNet, "BasicBlock", 4, 0.05, image_batches),
                                             ("encoder", Encoder, "Layer", 4, 0.05, token_batches),
                                             ("lstm", Recurrent, "LSTM", 3, 1.0, token_batches)):
        torch.manual_seed(0)
        model = make()
        write(folder, f"{name}_scripted", torch.jit.script(model), unit, units, lr, batches)
        x, y = batches()
        write(folder, f"{name}_traced", torch.jit.trace(model, (x, y), check_trace=False), unit, units, lr, batches)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
