"""What Paddle's fused attention accepts: the model and the advice about a config need it."""

# The widths of a head: paddle.nn.functional.scaled_dot_product_attention chooses FlashAttention for
# multiples of 8 up to 256 (nn/functional/sdpa.py of Paddle 3.3.1, check_head_dim_size_flash).
STEP, LARGEST = 8, 256


def takes_head_width(width: int) -> bool:
    """Returns whether the fused attention takes heads of this width."""
    return width % STEP == 0 and 0 < width <= LARGEST
