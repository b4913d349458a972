"""`models.Seq2Seq` spelt out in PyTorch: one sentence, one loop, as the papers write it."""

import pytest

torch = pytest.importorskip("torch", reason="the reference is PyTorch's")
nn = torch.nn


class Reference(nn.Module):
    """Bahdanau's scores, Luong's attentional vector and input feeding, with nothing hoisted."""

    def __init__(self, source_vocab, target_vocab, embed, hidden, layers, attention="additive"):
        super().__init__()
        self.hidden, self.attention = hidden, attention
        self.source_embedding = nn.Embedding(source_vocab, embed)
        self.target_embedding = nn.Embedding(target_vocab, embed)
        self.encoder = nn.LSTM(embed, hidden, layers, bidirectional=True)
        widths = [embed + hidden, *[hidden] * (layers - 1)]
        self.cells = nn.ModuleList([nn.LSTMCell(width, hidden) for width in widths])
        self.bridges = nn.ModuleList([nn.Linear(2 * hidden, hidden) for _ in range(2 * layers)])
        self.W_query = nn.Linear(hidden, hidden, bias=False)
        self.W_key = nn.Linear(2 * hidden, hidden, bias=False)
        self.v = nn.Parameter(torch.randn(hidden))
        self.W_c = nn.Linear(3 * hidden, hidden, bias=False)
        self.output = nn.Linear(hidden, target_vocab)

    def scores(self, h, memory):
        if self.attention == "general":
            return self.W_key(memory) @ h
        return torch.tanh(self.W_query(h) + self.W_key(memory)) @ self.v

    def logits(self, source, inputs):
        memory, (h_n, _) = self.encoder(self.source_embedding(source))
        summary = torch.cat([h_n[-2], h_n[-1]])
        states = []
        for k in range(len(self.cells)):
            h_map, c_map = self.bridges[2 * k : 2 * k + 2]
            states.append((torch.tanh(h_map(summary)), c_map(summary)))
        feed = torch.zeros(self.hidden)
        rows = []
        for token in inputs:
            x = torch.cat([self.target_embedding(token), feed])
            for k, cell in enumerate(self.cells):
                states[k] = cell(x, states[k])
                x = states[k][0]
            weights = torch.softmax(self.scores(x, memory), dim=0)
            feed = torch.tanh(self.W_c(torch.cat([weights @ memory, x])))
            rows.append(self.output(feed))
        return torch.stack(rows)

    def loss(self, source, target, begin, end, smoothing=0.0):
        source, target = torch.tensor(source), torch.tensor(target, dtype=torch.long)
        inputs = torch.cat([torch.tensor([begin]), target])
        outputs = torch.cat([target, torch.tensor([end])])
        logits = self.logits(source, inputs)
        return nn.functional.cross_entropy(
            logits, outputs, reduction="sum", label_smoothing=smoothing
        )


def renamed(values, embed):
    """Values or gradients of a `Reference` under the names of `Seq2Seq`, as NumPy arrays."""
    values = {name: value.detach().numpy() for name, value in values.items()}
    names = {}
    for name, value in values.items():
        if name.startswith(
            ("source_embedding", "target_embedding", "encoder", "bridges", "output")
        ):
            names[name] = value
        elif name.startswith("cells"):
            _, layer, kind = name.split(".")
            prefix = f"decoder.layers.{layer}"
            if kind == "weight_ih" and layer == "0":
                names[f"{prefix}.weight_ih"] = value[:, :embed]
                names["decoder.feed.weight"] = value[:, embed:]
            elif kind == "bias_ih":  # the reference's other bias is zero, and its gradient equal
                names[f"{prefix}.bias"] = value
            elif kind != "bias_hh":
                names[f"{prefix}.{kind}"] = value
    hidden = values["W_c.weight"].shape[0]
    names["decoder.context.weight"] = values["W_c.weight"][:, : 2 * hidden]
    names["decoder.state.weight"] = values["W_c.weight"][:, 2 * hidden :]
    names["decoder.attention.key.weight"] = values["W_key.weight"]
    names["decoder.attention.query.weight"] = values["W_query.weight"]
    names["decoder.attention.vector"] = values["v"]
    return names
