"""Where gradients of the library and recipes were published."""

from __future__ import annotations

ANCONA = "Ancona et al., Towards better understanding of gradient-based attribution methods, 2018"
DEEPLIFT = (
    "Shrikumar, Greenside and Kundaje, Learning Important Features Through Propagating Activation"
    " Differences, 2017"
)
GUIDED_BACKPROP = "Springenberg et al., Striving for Simplicity: The All Convolutional Net, 2015"
LRP = (
    "Bach et al., On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise"
    " Relevance Propagation, 2015"
)
