"""Bundles of a TPU's schedule are counted by the loop that they are in."""

from experiments.bench.accelerator_schedule import bundles

TEXT = """
LH: loop header
   0x4   :  { %7 = vsyncpa [#allocation3], 0 } /* Start region 1 */
   0x8 LB: > { %4365 = sst [smem:[#allocation5_spill]] %s2922_s10 }
second_minor_factor: 1 */ } /* End region 25 */
  0x19   : > { %150 = sbr.rel (%p147_p12) target = $region28 }
 0x109 LB: >> { %v4389_v16 = vld [vmem:[#allocation21_spill] sm:$0xff] }
 0x10a   : >> { %v4390_v34 = vld [vmem:[#allocation16_spill] sm:$0xff] }
 0x10b   : >> {}
 0x29a PF: > { %s4439_s7 = sld [smem:[#allocation7_spill]] }
 0x2ac   :  { %14 = sbr.rel (!%p12_p3) target = $region94 }
"""


def test_bundles_are_counted_by_their_loop() -> None:
    assert bundles(TEXT) == {0: 2, 1: 3, 2: 3}
