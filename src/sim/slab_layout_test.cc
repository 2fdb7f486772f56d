// SPDX-License-Identifier: Apache-2.0
#include "sim/slab_layout.h"
