"""Control of the daemon by other processes of its user: requests and answers over a Unix socket."""
