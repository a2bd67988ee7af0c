"""Why a node cannot hold a Pod, device by device, and what would change that. Every answer is `place()`'s (pure)."""
