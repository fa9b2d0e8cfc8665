"""Linux machines over SSH: a Raspberry Pi, a server, a workstation, measured as devices of platform `linux`.

`address` reads `ssh://user@host:port`; `connection` is the transport over the system's OpenSSH client;
`target` says what such a machine can measure. Files are in the remote user's `~/.cache/sme2`, unless
SME2_SSH_ROOT names another folder. Everything else is the same for any remote device: `remote/`.
"""
