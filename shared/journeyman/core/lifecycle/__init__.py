"""One NodeClaim's life: launch, register, initialize, time out, expire, drain, terminate; and what is left over."""
