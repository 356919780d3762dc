"""Operations on an installation: drain, reshard, claim the broker, check (doctor), measure (bench)."""
