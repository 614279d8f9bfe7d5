//! Which addresses are public: the special-purpose registries of IANA as code.
//!
//! A command must not reach the machine it runs on, its network, or its cloud's
//! credentials through a name that happens to resolve there. So an address counts as
//! public only when the registries (RFC 6890 and its successors) say so; for IPv6 that is
//! 2000::/3 minus exceptions, everything not yet given out being refused. An IPv4 address
//! inside an IPv6 one is judged as what it leads to.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use nix::ifaddrs::getifaddrs;

/// How far an address reaches, from harmless to never dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// Globally routable.
    Global,
    /// Private, local, reserved, or the host's own.
    Local,
    /// Gives out the credentials of the machine in a cloud.
    Metadata,
    /// No single machine: unspecified (which Linux takes for itself), multicast, broadcast.
    Never,
}

type Net4 = (Ipv4Addr, u8);
type Net6 = (Ipv6Addr, u8);

const fn v4(a: u8, b: u8, c: u8, d: u8) -> Ipv4Addr {
    Ipv4Addr::new(a, b, c, d)
}

/// Metadata services with fixed addresses. The last is a public address, answered by the
/// host of the machine.
const METADATA_4: [Ipv4Addr; 6] = [
    v4(169, 254, 169, 254),
    v4(169, 254, 170, 2),
    v4(169, 254, 170, 23),
    v4(100, 100, 100, 200),
    v4(192, 0, 0, 192),
    v4(168, 63, 129, 16),
];

const METADATA_6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

const NEVER_4: [Net4; 2] = [
    (v4(0, 0, 0, 0), 8),   // this network
    (v4(224, 0, 0, 0), 4), // multicast
];

const LOCAL_4: [Net4; 13] = [
    (v4(10, 0, 0, 0), 8),      // private
    (v4(100, 64, 0, 0), 10),   // shared by a provider's customers
    (v4(127, 0, 0, 0), 8),     // loopback
    (v4(169, 254, 0, 0), 16),  // link-local
    (v4(172, 16, 0, 0), 12),   // private
    (v4(192, 0, 0, 0), 24),    // protocol assignments
    (v4(192, 0, 2, 0), 24),    // documentation
    (v4(192, 88, 99, 0), 24),  // relays of 6to4, withdrawn
    (v4(192, 168, 0, 0), 16),  // private
    (v4(198, 18, 0, 0), 15),   // benchmarking
    (v4(198, 51, 100, 0), 24), // documentation
    (v4(203, 0, 113, 0), 24),  // documentation
    (v4(240, 0, 0, 0), 4),     // reserved
];

const fn net6(a: u16, b: u16, bits: u8) -> Net6 {
    (Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), bits)
}

/// What is given out; all else is local (fc00::/7, fe80::/10, fec0::/10) or unassigned.
const GLOBAL_6: Net6 = net6(0x2000, 0, 3);

const LOCAL_6: [Net6; 3] = [
    net6(0x2001, 0, 23),     // protocol assignments
    net6(0x2001, 0xdb8, 32), // documentation
    net6(0x3fff, 0, 20),     // documentation
];

impl Reach {
    /// The reach of `address`, which is `Local` at least if it leads to one of `own`.
    pub(crate) fn of(address: IpAddr, own: &[IpAddr]) -> Self {
        let (reach, inside) = match address {
            IpAddr::V4(address) => (reach4(address), Vec::new()),
            IpAddr::V6(address) => (reach6(address), embedded(address)),
        };
        let is_own = own.contains(&address) || inside.iter().any(|v4| own.contains(&(*v4).into()));
        if is_own {
            reach.max(Self::Local)
        } else {
            reach
        }
    }
}

fn reach4(address: Ipv4Addr) -> Reach {
    let within = |(net, bits): &Net4| (address.to_bits() ^ net.to_bits()) >> (32 - bits) == 0;
    if METADATA_4.contains(&address) {
        Reach::Metadata
    } else if address.is_broadcast() || NEVER_4.iter().any(within) {
        Reach::Never
    } else if LOCAL_4.iter().any(within) {
        Reach::Local
    } else {
        Reach::Global
    }
}

fn reach6(address: Ipv6Addr) -> Reach {
    let within = |(net, bits): &Net6| (address.to_bits() ^ net.to_bits()) >> (128 - bits) == 0;
    if METADATA_6.contains(&address) {
        return Reach::Metadata;
    }
    if address.is_unspecified() || address.is_multicast() {
        return Reach::Never;
    }
    if address.is_loopback() {
        return Reach::Local;
    }
    let inside = embedded(address).into_iter().map(reach4).max();
    match (inside, address.segments()) {
        // NAT64, 6to4 and Teredo reach as far as what is inside them.
        (Some(inside), [0x64, 0xff9b, ..] | [0x2002, ..] | [0x2001, 0, ..]) => inside,
        // The other forms are no one's public address, whatever is inside.
        (Some(inside), _) => inside.max(Reach::Local),
        (None, _) if LOCAL_6.iter().any(within) || !within(&GLOBAL_6) => Reach::Local,
        (None, _) => Reach::Global,
    }
}

/// The IPv4 addresses that a packet to `address` could end at or pass through.
fn embedded(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let join = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match address.segments() {
        // Compatible (RFC 4291, 2.5.5.1), mapped (2.5.5.2), translated (RFC 2765).
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low]
        // NAT64 (RFC 6052).
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => vec![join(high, low)],
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => vec![join(high, low)],
        // Teredo (RFC 4380): its server, and the client with its bits turned.
        [0x2001, 0, high, low, _, _, client_high, client_low] => {
            vec![join(high, low), join(!client_high, !client_low)]
        }
        _ => Vec::new(),
    }
}

/// The addresses of this host's interfaces, read anew: they change while a server runs.
pub(crate) fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let of_interface = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        if let Some(v4) = address.as_sockaddr_in() {
            Some(IpAddr::V4(v4.ip()))
        } else {
            address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()))
        }
    };
    Ok(getifaddrs()?.filter_map(of_interface).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reach(address: &str) -> Reach {
        Reach::of(address.parse().unwrap(), &[])
    }

    #[test]
    fn every_class_of_ipv4() {
        for (first, last, expected) in [
            ("0.0.0.0", "0.255.255.255", Reach::Never),
            ("10.0.0.0", "10.255.255.255", Reach::Local),
            ("100.64.0.0", "100.127.255.255", Reach::Local),
            ("127.0.0.1", "127.255.255.255", Reach::Local),
            ("169.254.0.0", "169.254.255.255", Reach::Local),
            ("172.16.0.0", "172.31.255.255", Reach::Local),
            ("192.0.0.0", "192.0.0.255", Reach::Local),
            ("192.0.2.0", "192.0.2.255", Reach::Local),
            ("192.88.99.0", "192.88.99.255", Reach::Local),
            ("192.168.0.0", "192.168.255.255", Reach::Local),
            ("198.18.0.0", "198.19.255.255", Reach::Local),
            ("198.51.100.0", "198.51.100.255", Reach::Local),
            ("203.0.113.0", "203.0.113.255", Reach::Local),
            ("224.0.0.0", "239.255.255.255", Reach::Never),
            ("240.0.0.0", "255.255.255.254", Reach::Local),
            ("255.255.255.255", "255.255.255.255", Reach::Never),
            ("1.0.0.0", "9.255.255.255", Reach::Global),
            ("11.0.0.0", "100.63.255.255", Reach::Global),
            ("100.128.0.0", "126.255.255.255", Reach::Global),
            ("128.0.0.0", "168.63.129.15", Reach::Global),
            ("169.255.0.0", "172.15.255.255", Reach::Global),
            ("172.32.0.0", "191.255.255.255", Reach::Global),
            ("192.0.1.0", "192.0.1.255", Reach::Global),
            ("192.169.0.0", "198.17.255.255", Reach::Global),
            ("198.20.0.0", "198.51.99.255", Reach::Global),
            ("203.0.114.0", "223.255.255.255", Reach::Global),
        ] {
            assert_eq!(reach(first), expected, "{first}");
            assert_eq!(reach(last), expected, "{last}");
        }
    }

    #[test]
    fn every_class_of_ipv6() {
        for (address, expected) in [
            ("::", Reach::Never),
            ("::1", Reach::Local),
            ("ff02::1", Reach::Never),
            ("ff0e::1", Reach::Never),
            ("fc00::1", Reach::Local),
            ("fdff::1", Reach::Local),
            ("fe80::1", Reach::Local),
            ("fec0::1", Reach::Local),
            ("100::1", Reach::Local),
            ("5f00::1", Reach::Local),
            ("4000::1", Reach::Local),
            ("2001:db8::1", Reach::Local),
            ("3fff::1", Reach::Local),
            ("3fff:fff::1", Reach::Local),
            ("2001:2::1", Reach::Local),
            ("2001:10::1", Reach::Local),
            ("2001:1ff::1", Reach::Local),
            ("64:ff9b:1::8.8.8.8", Reach::Local),
            // Mapped, compatible, translated.
            ("::ffff:127.0.0.1", Reach::Local),
            ("::ffff:8.8.8.8", Reach::Local),
            ("::ffff:0.0.0.0", Reach::Never),
            ("::ffff:169.254.169.254", Reach::Metadata),
            ("::127.0.0.1", Reach::Local),
            ("::8.8.8.8", Reach::Local),
            ("::ffff:0:8.8.8.8", Reach::Local),
            // NAT64, 6to4, Teredo.
            ("64:ff9b::8.8.8.8", Reach::Global),
            ("64:ff9b::10.0.0.1", Reach::Local),
            ("64:ff9b::169.254.169.254", Reach::Metadata),
            ("2002:808:808::1", Reach::Global),
            ("2002:7f00:1::1", Reach::Local),
            ("2002:c0a8:101::1", Reach::Local),
            ("2001:0:808:808:0:0:f7f7:f7f7", Reach::Global),
            ("2001:0:a00:1:0:0:f7f7:f7f7", Reach::Local),
            ("2001:0:808:808:0:0:80ff:fffe", Reach::Local),
            // Public ones.
            ("2001:200::1", Reach::Global),
            ("2001:4860:4860::8888", Reach::Global),
            ("2606:4700:4700::1111", Reach::Global),
            ("2a00::1", Reach::Global),
            ("2003::1", Reach::Global),
            ("3fff:1000::1", Reach::Global),
        ] {
            assert_eq!(reach(address), expected, "{address}");
        }
    }

    #[test]
    fn metadata_services() {
        for address in METADATA_4 {
            assert_eq!(Reach::of(address.into(), &[]), Reach::Metadata);
            assert!(Reach::of(address.to_ipv6_mapped().into(), &[]) == Reach::Metadata);
        }
        for address in METADATA_6 {
            assert_eq!(Reach::of(address.into(), &[]), Reach::Metadata);
        }
    }

    #[test]
    fn the_hosts_own() {
        let own = ["8.8.8.8".parse().unwrap(), "2a00::1".parse().unwrap()];
        for (address, expected) in [
            ("8.8.8.8", Reach::Local),
            ("8.8.8.9", Reach::Global),
            ("2a00::1", Reach::Local),
            ("2a00::2", Reach::Global),
            ("64:ff9b::8.8.8.8", Reach::Local),
            ("2002:808:808::1", Reach::Local),
        ] {
            assert_eq!(
                Reach::of(address.parse().unwrap(), &own),
                expected,
                "{address}"
            );
        }
        assert!(own_addresses().unwrap().contains(&v4(127, 0, 0, 1).into()));
    }

    proptest! {
        /// The standard library's own opinions are a second source.
        #[test]
        fn agrees_with_std(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            if address.is_private() || address.is_loopback() || address.is_link_local()
                || address.is_multicast() || address.is_documentation() || address.is_unspecified()
                || address.is_broadcast()
            {
                prop_assert_ne!(reach4(address), Reach::Global);
            }
            prop_assert_ne!(reach6(address.to_ipv6_mapped()), Reach::Global);
        }
    }
}
