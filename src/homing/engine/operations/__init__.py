"""Operations: what operators read and change, from statistics and dead letters to policies and providers."""
