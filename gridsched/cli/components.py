"""What a footprint's components are called for a person, the same in every table. Imports next to nothing, because
`estimate` answers before the server's libraries could be loaded."""

COMPONENTS = (
    ("weights", "weights_bytes"),
    ("cache", "kv_bytes"),
    ("state", "recurrent_bytes"),
    ("compute", "compute_bytes"),
    ("projector", "mmproj_bytes"),
    ("drafting", "draft_bytes"),
    ("outside", "overhead_bytes"),
)
