"""Adds up the integers of many owners between two servers, with noise that neither server knows.

It implements SPGC (Iwahana, Yanai and Fujiwara, "Privacy-Preserving Collaborative Learning Based on Integration of
Secure Computation and Differential Privacy", paper 001). Its parts, each of which imports only those before it:
:mod:`channel` (messages), :mod:`crypto` (randomness, shares, oblivious transfer), :mod:`circuits` (Boolean circuits
and their garbling), :mod:`noise` (laws and accounting), :mod:`protocol` (terms of a training, the noisy sum of two
servers) and :mod:`service` (servers and owners over gRPC). This is research code that nobody outside has audited.

**Trust.** Servers and owners are semi-honest: they follow the protocol, and try to learn what they can from what they
see. H1 and H2 do not communicate beyond the protocol. Nothing is promised against a server that departs from it: it
can shift a sum at will or stop it, and learn more than it should, such as a sum without its noise. An owner can submit
any integers of the ring, up to the norm that the servers check if the terms ask for it
(:mod:`dpaudit.secure.protocol.norm_check`). Longer ones can spoil a step (poisoning); the owner's own examples are
then not protected as accounted, those of the others are.

**What each party learns.** A server, even together with all owners but one: the opened sums, who took part in which
step and when, whose norm was refused, and about the remaining owner what the noisy sums reveal. Two servers that
collude learn every owner's integers. An owner learns the opened sums and whose integers are in them. An eavesdropper
learns, where certificates are used, who talks to whom, when, and how much.

**What the noise protects.** Each example of an owner, in the sense that it could have been replaced by any other, in
every opening that was begun, whether or not it produced a result (:class:`dpaudit.secure.protocol.agreement.Budget`).

**What a copy of the disk reveals.** The opened sums, which all owners know, and the blocks prepared in advance. A
server's block, together with a record of the messages exchanged when it is opened, reveals the server's share of that
step's sum. The blocks of both servers reveal the noise of the steps to come. A copy of one server's folder in the
hands of the other server therefore amounts to collusion. Blocks reveal nothing about steps that other blocks opened.
We cannot promise that a used block is physically gone from the disk. Files are readable by their owner only; encrypt
the disk, or keep no blocks at all with ``--ahead 0``.

**Restored backups.** Opening one block twice reveals a share, so a server that has forgotten a block which the other
saw it use is refused (:mod:`dpaudit.secure.protocol.prepared`). The only way forward is to start it once with
``--rejoin``: both servers discard all prepared blocks, and the restarted server copies the results it lacks from the
other. An empty server replaces a lost one in the same way. If both are restored to earlier states, neither can tell:
start one of them with ``--rejoin`` before anything is opened. Openings that one server has forgotten still count as
spent; those that both have forgotten count no more, so the training has then spent more than its servers say.

**Keys.** Whoever has a server's key can impersonate it. Whoever has the authority's key can impersonate an owner, but
not a server (:mod:`dpaudit.secure.service.certificates`). Without certificates every party is believed and nothing is
encrypted: use that on a single machine only.
"""

from typing import TYPE_CHECKING

from dpaudit._lazy import attach

if TYPE_CHECKING:
    from dpaudit.secure.channel import ChannelError as ChannelError
    from dpaudit.secure.crypto import shares as shares
    from dpaudit.secure.noise import accounting as accounting
    from dpaudit.secure.noise import gaussian as gaussian
    from dpaudit.secure.noise import lookup as lookup
    from dpaudit.secure.noise.binomial import Binomial as Binomial
    from dpaudit.secure.noise.binomial import binomial as binomial
    from dpaudit.secure.protocol import schemes as schemes
    from dpaudit.secure.protocol.agreement import Terms as Terms
    from dpaudit.secure.protocol.agreement import terms as terms
    from dpaudit.secure.protocol.fixed_point import dequantize as dequantize
    from dpaudit.secure.protocol.fixed_point import quantize as quantize
    from dpaudit.secure.protocol.fixed_point import quantized_sum as quantized_sum
    from dpaudit.secure.service import certificates as certificates
    from dpaudit.secure.service.owner import Owner as Owner
    from dpaudit.secure.service.server import Server as Server

__getattr__, __dir__, __all__ = attach(__name__)
