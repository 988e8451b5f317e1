"""The primitives, named after what their files hold; `Schedule` lists them as its methods."""
