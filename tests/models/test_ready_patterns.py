"""The ready patterns find in the real models what is there, and nothing else."""

from __future__ import annotations

import pytest

import graphpatch
from graphpatch.match.ready import READY
from graphpatch.match.select import find
from graphpatch.match.spec import Match
from tests.models import catalogue


@pytest.mark.parametrize("name", catalogue.every_model())
def test_each_is_found_as_often_as_it_is_there(name: str) -> None:
    graphs = graphpatch.load(catalogue.models()[name]).graphs
    found = {
        pattern: sum(find(graph, Match(pattern=f"@{pattern}")).count for graph in graphs)
        for pattern in READY
    }
    assert found == {pattern: COUNTS.get(pattern, {}).get(name, 0) for pattern in READY}


def test_every_count_is_of_a_ready_pattern_in_a_model() -> None:
    if not catalogue.models():
        pytest.skip(f"no real models in {catalogue.folder()}")
    assert set(COUNTS) <= set(READY)
    assert {name for counts in COUNTS.values() for name in counts} <= set(catalogue.models())
    assert all(count > 0 for counts in COUNTS.values() for count in counts.values())


# How often each ready pattern is in the real models, counted in the graphs without the matcher.


# By a walk of its own over the NodeDefs, and by eye where the two differed: a mask of dropout is
# one, though in a training graph its gradient is multiplied by it too. What is not here is 0.
DL4J = "zoo/KonduitAI+dl4j-test-resources__"
DEBUG = "debuginfo_v1_1.0_224_frozen.wrong_attr"
# fmt: off
COUNTS: dict[str, dict[str, int]] = {
    "leaky_relu": {"face_corrector.pb": 4},
    "prelu": {
        "mtcnn.pb": 12,
        "zoo/Saafke+FSRCNN_Tensorflow__CKPT_dir_x3_small_fsrcnn_ckpt.meta": 4,
        "zoo/Saafke+FSRCNN_Tensorflow__models_FSRCNN_x2.pb": 7,
    },
    "conv_bias_activation": {
        "basic_pitch_nmp": 18,
        "musicnn_MTT_vgg/model.meta": 5,
        f"{DL4J}sepconv1d_layers_channels_last_b2_k2_s1_d1_VALID_dm1_sigm_frozen_model.pb": 1,
        f"{DL4J}sepconv2d_layers_channels_last_b2_k2_s1_d1_SAME_dm2_sigm_nobias_frozen_model.pb": 1,
        "zoo/Saafke+FSRCNN_Tensorflow__CKPT_dir_x3_small_fsrcnn_ckpt.meta": 4,
        "zoo/Saafke+FSRCNN_Tensorflow__models_FSRCNN_x2.pb": 7,
        "zoo/SciSharp+TensorFlow.NET__graph_char_cnn_untrained.meta": 6,
        "zoo/SciSharp+TensorFlow.NET__graph_word_cnn_untrained.meta": 3,
        "zoo/dotnet+machinelearning-testdata__"
        "Microsoft.ML.TensorFlow.TestModels_cifar_model_frozen_model.pb": 1,
        "zoo/fannymonori+TF-ESPCN__export_ESPCN_x3.pb": 2,
        "zoo/graphcore+tensorflow__costs_graph_properties_testdata_large_function_graph.pbtxt": 1,
        "zoo/graphcore+tensorflow__tests_end2end_conv_2d_nchw.pbtxt": 1,
        "zoo/h2oai+deepwater__main_resources_alexnet_224x224x1_1.meta": 5,
        "zoo/h2oai+deepwater__main_resources_alexnet_224x224x1_10.meta": 5,
        "zoo/h2oai+deepwater__main_resources_alexnet_28x28x1_10.meta": 5,
        "zoo/h2oai+deepwater__main_resources_vgg_224x224x1_1.meta": 8,
        "zoo/h2oai+deepwater__main_resources_vgg_224x224x1_10.meta": 8,
        "zoo/h2oai+deepwater__main_resources_vgg_28x28x1_1.meta": 8,
        "zoo/uTensor+utensor_cgen__tests_deep_cnn_buggy.pb": 4,
    },
    "dense_bias_activation": {
        "dl4j/lstm_mnist.pb": 1,
        "dl4j/train_iris.pb": 4,
        "keras_lstm_savedmodel": 5,
        "kws_basic_lstm_s.pb": 1,
        "musicnn_MTT_vgg/model.meta": 1,
        "zoo/ARM-software+ML-KWS-for-MCU__Pretrained_models_LSTM_LSTM_S.pb": 1,
        f"{DL4J}basicrnncell_dynamic_b1_nIn5_nOut3_ts4_relu_noIS_noTM_float_frozen_model.pb": 1,
        f"{DL4J}bidir_basic_dynamic_b1_n5-3_ts4_sig_withIS_noTM_f64_frozen_model.pb": 2,
        f"{DL4J}bstack_sta_b1_n5-3_ts4_sig_IS_f64_n2_frozen_model.pb": 16,
        f"{DL4J}examples_primitive_gru_dynamic_frozen_model.pb": 11,
        f"{DL4J}fused_adapt_basic_static_b1_n5-3_ts4_tanh_noIS_float_frozen_model.pb": 5,
        "zoo/SciSharp+TensorFlow.NET__graph_char_cnn_untrained.meta": 2,
        "zoo/h2oai+deepwater__main_resources_alexnet_224x224x1_1.meta": 2,
        "zoo/h2oai+deepwater__main_resources_alexnet_224x224x1_10.meta": 3,
        "zoo/h2oai+deepwater__main_resources_alexnet_28x28x1_10.meta": 3,
        "zoo/h2oai+deepwater__main_resources_mlp_784x1x1_10.meta": 3,
        "zoo/h2oai+deepwater__main_resources_vgg_224x224x1_1.meta": 2,
        "zoo/h2oai+deepwater__main_resources_vgg_224x224x1_10.meta": 3,
        "zoo/h2oai+deepwater__main_resources_vgg_28x28x1_1.meta": 2,
        "zoo/intel-analytics+analytics-zoo__resources_tfnet_frozen_inference_graph.pb": 2,
        "zoo/intel-analytics+analytics-zoo__resources_tfnet_frozen_inference_graph_2.pb": 2,
        "zoo/snipsco+tract__examples_jupyter-keras-tract-tf1_my_model.pb": 2,
        "zoo/uTensor+utensor_cgen__tests_deep_cnn_buggy.pb": 2,
    },
    "batch_norm": {
        "face_corrector.pb": 1,
        "mobilenet_v1_0.25_128_frozen.pb": 27,
        f"{DL4J}batchnorm_rank3_nwc_batch4_sz5_noFused_frozen_model.pb": 1,
    },
    "fused_batch_norm": {
        "basic_pitch_nmp": 33,
        "face_corrector.pb": 6,
        "musicnn_MTT_vgg/model.meta": 12,
        "resnet_imagenet_34.pbtxt": 33,
        f"zoo/NVIDIA+tensorflow__tests_{DEBUG}.line.part.pbtxt": 1,
        "zoo/NVIDIA+tensorflow__tests_graphdef2mlir_graph-version-info.pbtxt": 1,
        f"zoo/graphcore+tensorflow__tests_{DEBUG}.stack.part.pbtxt": 1,
    },
    "layer_norm": {
        "stylize_quantized.pb": 18,
    },
    "dropout": {
        "face_corrector.pb": 3,
        "lstm_crf_ner.meta": 2,
        "musicnn_MTT_vgg/model.meta": 5,
        "zoo/SciSharp+TensorFlow.NET__graph_word_cnn_untrained.meta": 1,
        "zoo/uTensor+utensor_cgen__tests_deep_cnn_buggy.pb": 2,
    },
    "fake_quantization": {
        f"{DL4J}min_max_args_rank1_0_1_4bit_frozen_graph.pbtxt": 1,
        f"{DL4J}min_max_vars_rank1_0_1_8bit_narrow_frozen_model.pb": 1,
        "zoo/graphcore+tensorflow__tests_end2end_fake_quant_per_channel.pbtxt": 2,
    },
    "softmax_cross_entropy": {
        "dl4j/train_iris.pb": 2,
        "resnet_imagenet_34.pbtxt": 1,
        f"{DL4J}losses_softmax_ce_NONE_frozen_model.pb": 1,
        f"{DL4J}losses_sparse_softmax_ce_MEAN_frozen_model.pb": 1,
        f"{DL4J}losses_sparse_softmax_ce_frozen_model.pb": 1,
        "zoo/SciSharp+TensorFlow.NET__graph_char_cnn_untrained.meta": 1,
        "zoo/SciSharp+TensorFlow.NET__graph_word_cnn_untrained.meta": 1,
        "zoo/h2oai+deepwater__main_resources_alexnet_224x224x1_10.meta": 1,
        "zoo/h2oai+deepwater__main_resources_alexnet_28x28x1_10.meta": 1,
        "zoo/h2oai+deepwater__main_resources_mlp_784x1x1_10.meta": 1,
        "zoo/h2oai+deepwater__main_resources_vgg_224x224x1_10.meta": 1,
    },
}
# fmt: on
