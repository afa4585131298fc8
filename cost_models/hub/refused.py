"""Architectures that planner knows by name and does not describe: refused with a sentence, never taken for a dense decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping

SCOPE = "planner plans decoders with MHA, GQA or MLA, dense or MoE"

KINDS: Mapping[str, str] = {
    "a state-space or recurrent model": (
        "mamba mamba2 falcon_mamba rwkv rwkv5 rwkv6 rwkv7 rwkv_hybrid xlstm retnet hyena stripedhyena ttt hrm_text hrm"
    ),
    "a hybrid of attention with state-space, recurrent or convolution layers": (
        "jamba bamba zamba zamba2 zaya falcon_h1 nemotron_h nemotron_h_omni granitemoehybrid granite_hybrid recurrent_gemma griffin "
        "lfm2 lfm2_moe lfm2_vl lfm3 samba hymba phi4flash plamo2 nemotron_nas"
    ),
    "a model with linear-attention layers": (
        "qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text minimax minimax_text_01 minimax_text01 minimax_m1 kimi_linear "
        "bailing_hybrid bailing_moe_linear olmo_hybrid"
    ),
    "a model with an attention of its own (learned sparsity or block patterns)": (
        "deepseek_v32 deepseek_v4 glm_moe_dsa phi3small phi3_small minicpm4 gpt_bigcode_sparse longcat_flash openelm deci decilm"
    ),
    "a decoder with parts that planner does not describe (unusual norms, shared or extra weights)": (
        "gemma3n gemma3n_text gemma4 gemma4_text olmo apertus bitnet nanochat ernie4_5_moe hunyuan_v1_moe step3 arctic grok grok_1 "
        "grok1 minicpm minicpm3 flex_olmo jetmoe afmoe persimmon diffllama blt moshi"
    ),
    "an encoder-decoder model": (
        "t5 mt5 umt5 longt5 byt5 switch_transformers t5gemma t5gemma2 bart mbart mbart50 barthez plbart pegasus pegasus_x "
        "bigbird_pegasus marian m2m_100 nllb nllb_moe led blenderbot blenderbot_small prophetnet xlm_prophetnet fsmt whisper "
        "speech_to_text speecht5 seamless_m4t seamless_m4t_v2 encoder_decoder vision_encoder_decoder speech_encoder_decoder "
        "trocr donut pix2struct udop florence2 rag moonshine mvp"
    ),
    "an encoder-only model": (
        "bert roberta albert distilbert electra deberta deberta_v2 xlm xlm_roberta xlm_roberta_xl modernbert camembert flaubert "
        "mpnet ernie nomic_bert longformer big_bird bigbird funnel eurobert esm bert_generation convbert mobilebert squeezebert "
        "megatron_bert rembert canine fnet ibert layoutlm layoutlmv2 layoutlmv3 luke nystromformer perceiver reformer roformer "
        "splinter tapas xmod yoso xlnet neobert gte"
    ),
    "a diffusion model": (
        "unet unet2d unet2d_condition flux fluxtransformer2d sd3transformer2d dittransformer2d pixarttransformer2d transformer2d "
        "autoencoderkl stable_diffusion diffusion llada dream diffusion_gemma cogvideoxtransformer3d wantransformer3d "
        "hunyuanvideotransformer3d qwenimagetransformer2d sdar"
    ),
    "a vision, audio or contrastive model": (
        "vit clip chinese_clip altclip siglip siglip2 align dinov2 dinov3_vit swin swinv2 beit deit convnext convnextv2 resnet detr "
        "sam sam2 segformer wav2vec2 hubert wavlm unispeech sew encodec blip groupvit flava bridgetower vilt mask2former "
        "yolos depth_anything timesfm patchtst autoformer informer time_series_transformer decision_transformer"
    ),
    "a multimodal model whose text part planner does not take apart": (
        "llava llava_next llava_onevision llava_qwen llava_llama vipllava video_llava blip_2 instructblip idefics idefics2 idefics3 "
        "smolvlm paligemma fuyu kosmos2 kosmos2_5 git mllama qwen2_audio qwen2_5_omni qwen3_omni_moe internvl internvl_chat "
        "aya_vision aria chameleon emu3 janus phi3_v phi4mm phi4_multimodal musicgen bark csm dia voxtral deepseek_vl deepseek_vl_v2 "
        "glm4v glm4v_moe pixtral ovis molmo minicpmv cohere2_vision granite_speech ultravox"
    ),
}
"""What a kind is called -> the model types of that kind, separated by spaces."""


def squeezed(name: str) -> str:
    """Return a name without case and separators, so that deberta-v2, deberta_v2 and DebertaV2 agree."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def stem(class_name: str) -> str:
    """Return the family part of a class name: BertForMaskedLM -> bert, FluxTransformer2DModel -> fluxtransformer2d."""
    return squeezed(re.sub(r"(For[A-Z]\w*|LMHeadModel|DoubleHeadsModel|PreTrainedModel|Model|Pipeline)$", "", class_name))


REFUSED: Mapping[str, str] = {squeezed(name): kind for kind, names in KINDS.items() for name in names.split()}


def refusal(names: tuple[str, ...], classes: tuple[str, ...]) -> str | None:
    """Return "jamba, a hybrid of …" if one of the model types or classes is known and refused, else None."""
    for name in names:
        kind = REFUSED.get(squeezed(name))
        if kind:
            return f"{name}, {kind}"
    for name in classes:
        kind = REFUSED.get(stem(name))
        if kind:
            return f"{name}, {kind}"
    return None


def refused_name(name: str) -> str | None:
    """Return "mamba, a state-space …" if a typed model name begins with a refused family, else None."""
    words = re.split(r"[-_\s]+", name.split("/")[-1])
    letters = re.match(r"[A-Za-z]+", words[0])
    starts = ["-".join(words[:count]) for count in (3, 2, 1)] + ([letters.group()] if letters else [])
    for word in [*starts, *(word for word in words if squeezed(word) in {"t5", "mamba", "bert", "diffusion"})]:
        kind = REFUSED.get(squeezed(word))
        if kind:
            return f"{word} is {kind}"
    return None
