"""The weights of a hybrid decoder on the device that runs it."""

from __future__ import annotations

from dataclasses import replace

from engine.model.device import ModelDevice
from engine.model.hybrid_weights import AttentionWeights, GdnWeights, HybridLayer, HybridWeights


def move_hybrid(weights: HybridWeights, device: ModelDevice) -> HybridWeights:
    """The same weights there; what is shared stays shared."""
    embedding = device.matrix(weights.embedding)
    return replace(
        weights,
        embedding=embedding,
        layers=tuple(_layer(layer, device) for layer in weights.layers),
        final_norm=device.vector(weights.final_norm),
        head=embedding if weights.head is weights.embedding else device.matrix(weights.head),
    )


def _layer(layer: HybridLayer, device: ModelDevice) -> HybridLayer:
    mixer = layer.mixer
    return HybridLayer(
        mixer_norm=device.vector(layer.mixer_norm),
        mixer=_gdn(mixer, device) if isinstance(mixer, GdnWeights) else _attention(mixer, device),
        mlp_norm=device.vector(layer.mlp_norm),
        gate_up=device.weight(layer.gate_up),
        down=device.weight(layer.down),
    )


def _gdn(weights: GdnWeights, device: ModelDevice) -> GdnWeights:
    return GdnWeights(
        in_proj=device.weight(weights.in_proj),
        conv=device.vector(weights.conv),
        a_log=device.vector(weights.a_log),
        dt_bias=device.vector(weights.dt_bias),
        norm=device.vector(weights.norm),
        out_proj=device.weight(weights.out_proj),
    )


def _attention(weights: AttentionWeights, device: ModelDevice) -> AttentionWeights:
    return AttentionWeights(
        qkv=device.weight(weights.qkv),
        gate=None if weights.gate is None else device.weight(weights.gate),
        q_norm=device.vector(weights.q_norm),
        k_norm=device.vector(weights.k_norm),
        out_proj=device.weight(weights.out_proj),
    )
