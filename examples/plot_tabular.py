"""
A table
=======

The map of a row has one bar for each column. A data frame has the names of its columns, and a fitted scaler knows
the units: the figure has your units, such as centimetres, and the path runs in standard deviations.
"""

import torch
from sklearn.datasets import load_iris
from sklearn.preprocessing import StandardScaler
from torch import nn

import fringe

# %%
# A small network for Iris
# ------------------------

iris = load_iris(as_frame=True)
scaler = StandardScaler().fit(iris.data)
x = torch.tensor(scaler.transform(iris.data), dtype=torch.float32)
y = torch.tensor(iris.target.to_numpy())

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
optimiser = torch.optim.Adam(model.parameters(), 1e-2)
for _ in range(200):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()
model.eval()

# %%
# Explain
# -------
# A data frame needs no further argument. Arrays and tensors need ``kind="tabular"``, and ``features=`` for the names.

rows = iris.data.iloc[[0, 77, 120]]
result = fringe.explain(model, rows, preprocessing=scaler, classes=list(iris.target_names))
result

# %%
# The second flower, for which the network is less sure:

result[1].plot()

# %%
# Why not the other class? ``contrast`` explains the difference of two classes.

other = int(result.context.probabilities[1].topk(2).indices[1])
why = fringe.explain(model, rows.iloc[[1]], preprocessing=scaler, classes=list(iris.target_names), contrast=other)
why.plot()

# %%
# Paths of tables continue until the prediction is nearly uniform, so a map explains all of the prediction:

everything = fringe.explain(model, iris.data, preprocessing=scaler, classes=list(iris.target_names))
arrived = everything.diagnostics["endpoint_kl"] <= 0.05  # nats from the uniform prediction
print(f"{everything.verdict.count('ok')} of {len(everything)} maps ok, {int(arrived.sum())} paths arrived")
strength = everything.values.abs().mean(0)
for name, value in zip(iris.feature_names, strength, strict=True):
    print(f"{name:18} {float(value):.2f}")
