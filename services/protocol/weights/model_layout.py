"""Whether two versions are of the same model."""

from services.protocol.weights.weights import WeightManifest


def first_difference(manifest: WeightManifest, served: WeightManifest) -> str | None:
    """What of `manifest` does not fit an engine that has loaded `served`, in words.

    Names, shapes and element types must be the same, and what an adapter is added to; the
    order, the buckets and how many ranks hold them may differ.
    """
    if manifest.adapter != served.adapter:
        return f"they are for {manifest.adapter}, but {served.adapter} is served"
    offered = {spec.name: (spec.shape, spec.dtype) for spec in manifest.tensors}
    wanted = {spec.name: (spec.shape, spec.dtype) for spec in served.tensors}
    for name in sorted(offered.keys() | wanted.keys()):
        if name not in wanted:
            return f"{name} is not in the model that is served"
        if name not in offered:
            return f"{name} is missing"
        if offered[name] != wanted[name]:
            (shape, dtype), (has_shape, has_dtype) = offered[name], wanted[name]
            return f"{name} is {list(shape)} {dtype}, but {list(has_shape)} {has_dtype} is served"
    return None
