"""Why a pod has no place, by NodePool, and the smallest change that would give it one."""
