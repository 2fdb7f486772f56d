/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exported names. Those of the driver and of NVML jump to where
 * gpumux_guard_front says: to the guard's function, or to that of a library behind
 * the guard in the search order, which will come back by RTLD_NEXT. Asked once.
 *
 * dlsym and dlvsym as the program sees them. gpumux_guard_look_up says whether
 * the name is ours (rdx != 0: rax is the answer) or whose function to jump to
 * (rax). The jump leaves the stack as the caller made it, so that the real
 * dlsym takes the program for its caller: RTLD_NEXT depends on it.
 */
#ifndef __x86_64__
#error "the guard's look-up front exists for x86-64 only"
#endif
        .text

        .globl  dlsym
        .type   dlsym, @function
        .p2align 4
dlsym:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        movq    16(%rsp), %rcx          /* who asks */
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        xorl    %edx, %edx
        call    gpumux_guard_look_up
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %rdx, %rdx
        jnz     1f
        jmp     *%rax
1:      ret
        .cfi_endproc
        .size   dlsym, .-dlsym

        .globl  dlvsym
        .type   dlvsym, @function
        .p2align 4
dlvsym:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        movq    24(%rsp), %rcx
        call    gpumux_guard_look_up
        movq    %rdx, %rcx
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testq   %rcx, %rcx
        jnz     2f
        jmp     *%rax
2:      ret
        .cfi_endproc
        .size   dlvsym, .-dlvsym

/* As dlsym: gpumux_guard_open answers itself (rdx 1), or says where to jump to, with
 * the flags as they are (0) or without RTLD_DEEPBIND (2). */
        .globl  dlopen
        .type   dlopen, @function
        .p2align 4
dlopen:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        movq    16(%rsp), %rdx          /* who asks */
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    gpumux_guard_open
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        cmpq    $1, %rdx
        je      3f
        jb      4f
        andl    $~8, %esi               /* RTLD_DEEPBIND */
4:      jmp     *%rax
3:      ret
        .cfi_endproc
        .size   dlopen, .-dlopen

/* Where each exported name leads; 0 until it is called first. */
        .local  front_targets
        .comm   front_targets, 8 * 512, 8

/* Index in r11, the call's arguments untouched. */
        .type   first_call, @function
        .p2align 4
first_call:
        .cfi_startproc
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        pushq   %rcx
        .cfi_adjust_cfa_offset 8
        pushq   %r8
        .cfi_adjust_cfa_offset 8
        pushq   %r9
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        movq    %r11, %rdi
        leaq    front_targets(%rip), %rsi
        leaq    (%rsi, %r11, 8), %rsi
        call    gpumux_guard_front
        movq    %rax, %r11
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %r9
        .cfi_adjust_cfa_offset -8
        popq    %r8
        .cfi_adjust_cfa_offset -8
        popq    %rcx
        .cfi_adjust_cfa_offset -8
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        jmp     *%r11
        .cfi_endproc
        .size   first_call, .-first_call

        .set    front_index, 0
        .macro  front name
        .globl  \name
        .type   \name, @function
        .p2align 4
\name:
        .cfi_startproc
        endbr64
        movq    front_targets + 8 * front_index(%rip), %r11
        testq   %r11, %r11
        jz      2f
        jmp     *%r11
2:      movl    $front_index, %r11d
        jmp     first_call
        .cfi_endproc
        .size   \name, .-\name
        .set    front_index, front_index + 1
        .endm

/* In the order of the tables in routing.cc. */
#define GPUMUX_HOOK(name, params) front name
#include "guard/hooks.inc"
#undef GPUMUX_HOOK
#define GPUMUX_NVML_HOOK(name, params) front name
#include "guard/nvml_hooks.inc"
#undef GPUMUX_NVML_HOOK
        .if     front_index > 512
        .error  "more hooks than front_targets has room for"
        .endif

        .section .note.GNU-stack,"",@progbits
