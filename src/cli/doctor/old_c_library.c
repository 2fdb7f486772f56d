// SPDX-License-Identifier: Apache-2.0
//
// For tests: what of a C library of 2010 says how old it is.
int first(void) { return 1; }
int second(void) { return 2; }
