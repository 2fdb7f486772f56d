/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exported names of a library of the software GPU: each jumps to its
 * definition, which is named softgpu_NAME (the build renames it), and asks
 * gpumux_softgpu_fault first while scripted faults are possible. A call that
 * goes on finds registers and stack as its caller made them.
 * FRONT_LIST is the file that lists the names.
 */
#ifndef __x86_64__
#error "the software GPU's front exists for x86-64 only"
#endif
        .text

        .hidden gpumux_softgpu_front_state
        .hidden gpumux_softgpu_fault

/* r11: the number of the name. Answers in eax. */
        .type   ask, @function
        .p2align 4
ask:
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
        subq    $128, %rsp
        .cfi_adjust_cfa_offset 128
        movups  %xmm0, (%rsp)
        movups  %xmm1, 16(%rsp)
        movups  %xmm2, 32(%rsp)
        movups  %xmm3, 48(%rsp)
        movups  %xmm4, 64(%rsp)
        movups  %xmm5, 80(%rsp)
        movups  %xmm6, 96(%rsp)
        movups  %xmm7, 112(%rsp)
        movl    %r11d, %edi
        call    gpumux_softgpu_fault
        movups  (%rsp), %xmm0
        movups  16(%rsp), %xmm1
        movups  32(%rsp), %xmm2
        movups  48(%rsp), %xmm3
        movups  64(%rsp), %xmm4
        movups  80(%rsp), %xmm5
        movups  96(%rsp), %xmm6
        movups  112(%rsp), %xmm7
        addq    $128, %rsp
        .cfi_adjust_cfa_offset -128
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
        ret
        .cfi_endproc
        .size   ask, .-ask

        .set    number, 0
.macro FRONT name
        .globl  \name
        .type   \name, @function
        .p2align 4
\name:
        .cfi_startproc
        endbr64
        cmpl    $1, gpumux_softgpu_front_state(%rip)
        jne     2f
1:      jmp     softgpu_\name
2:      movl    $number, %r11d
        call    ask
        cmpl    $-1, %eax
        je      1b
        ret
        .cfi_endproc
        .size   \name, .-\name
        .set    number, number + 1
.endm

#define GPUMUX_ENTRY(stem, version, flavour, symbol) FRONT symbol
#define GPUMUX_NVML_ENTRY(symbol) FRONT symbol
#include FRONT_LIST

        .section .note.GNU-stack,"",@progbits
