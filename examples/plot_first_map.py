"""
A first map in three lines
==========================

A name of a model and a name of an input are enough. Both are in the package here; a photo and a network of torchvision
are explained by the same call: ``fringe.explain("torchvision:resnet50", "photo.jpg")``.
"""

import fringe

result = fringe.explain("embedded:digits", "embedded:digits:5")
result.plot()

# %%
# What came out, on one screen: the method, the verdict and its reason, how far the map's sum is from the change of
# the score, and the passes through the network that it took.

result

# %%
# **The signs.** Red entries spoke for the class, blue ones against it. The number of an entry is its share of the
# change of the logit.

result.plot("signed")

# %%
# **The path.** FRInGe does not start from a black image. It changes the input step by step, until all classes are
# almost equally probable. The entropy says how far it came: at 100 % they are equal. Below it: the image on the path,
# its change, and the map so far.

result.plot("path")

# %%
# **The steps.** What set the length of each step: the prediction, the image, or the largest factor allowed.

result.plot("profile")
