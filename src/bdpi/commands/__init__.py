"""The commands of ``bdpi``, one file each; ``bdpi.cli`` makes one program of them."""
