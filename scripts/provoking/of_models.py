"""Models that are none, or that are not where the user thinks they are."""

from __future__ import annotations

from provoking.case import Case, typed

MODELS: tuple[Case, ...] = (
    typed("a model that is not there", "ops modle.pb"),
    typed("an empty file", "ops empty.pb"),
    typed("a file that was cut short", "ops cut.pb"),
    typed("random bytes", "ops random.pb"),
    typed("a text file", "ops notes.pb"),
    typed("a Git LFS pointer", "ops pointer.pb"),
    typed("a web page saved as a model", "ops page.pb"),
    typed("a GraphDef as text with a typo", "ops typo.pbtxt"),
    typed("a model compressed with gzip", "ops model.pb.gz"),
    typed("a Keras model in HDF5", "ops net.h5"),
    typed("weights in HDF5", "ops weights.h5"),
    typed("a .keras file", "ops net.keras"),
    typed("a .tflite file", "ops net.tflite"),
    typed("an .onnx file", "ops net.onnx"),
    typed("a PyTorch file", "ops net.pt"),
    typed("a pickle", "ops net.pkl"),
    typed("a NumPy array", "ops arrays.npy"),
    typed("a zip file", "ops models.zip"),
    typed("a tar file", "ops models.tar"),
    typed("the index of a checkpoint", "ops model.ckpt.index"),
    typed("the data of a checkpoint", "ops model.ckpt.data-00000-of-00001"),
    typed("the file named checkpoint", "ops checkpoint"),
    typed("the prefix of a checkpoint", "ops model.ckpt"),
    typed("a folder without a model", "ops pile"),
    typed("the variables of a SavedModel", "ops saved"),
    typed("a rules file as the model", "ops rules.json"),
    typed("an op that is not there", "ops model.pb dense/Rleu"),
    typed("an empty pipe", "ops -"),
)
