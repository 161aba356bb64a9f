"""
A first map in three lines
==========================

The name of a model and the name of an input are enough. Here both are in the package. The same call explains a photo
and a network of torchvision: ``fringe.explain("torchvision:resnet50", "photo.jpg")``.
"""

import fringe

result = fringe.explain("embedded:digits", "embedded:digits:5")
result.plot()

# %%
# A summary: the method, the verdict and its reason, the difference between the map's sum and the change of
# the score, and the number of passes through the network.

result

# %%
# **The signs.** Red entries are evidence for the class, blue entries against it. The number of an entry is its part of
# the change of the logit.

result.plot("signed")

# %%
# **The path.** FRInGe does not start from a black image. It changes the input step by step, and the probabilities of
# the classes become more alike. The entropy says how far the path came: at 100 % all are equally probable. Below it
# are the image on the path, its change, and the map so far.

result.plot("path")

# %%
# **The steps.** What limited the length of each step: the prediction, the image, or the largest allowed factor.

result.plot("profile")
