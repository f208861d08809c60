//! An encoded protobuf message into JSON.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost_reflect::{DynamicMessage, MessageDescriptor, SerializeOptions};

/// Canonical protobuf JSON, with the fields that have their default value: who reads an
/// answer by hand shall see an empty list as an empty list.
const OPTIONS: SerializeOptions = SerializeOptions::new().skip_default_fields(false);

/// Appends a message as JSON.
///
/// # Errors
/// When the bytes are not a message of this type, in words.
pub fn to_json(
    descriptor: &MessageDescriptor,
    message: Bytes,
    text: &mut BytesMut,
) -> Result<(), String> {
    let message =
        DynamicMessage::decode(descriptor.clone(), message).map_err(|error| error.to_string())?;
    let mut serializer = serde_json::Serializer::new(text.writer());
    message
        .serialize_with_options(&mut serializer, &OPTIONS)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use cnlab_proto::scheduler::v1 as pb;
    use prost::Message as _;
    use prost_reflect::DescriptorPool;

    use super::*;

    #[test]
    fn defaults_are_shown_and_absent_messages_are_not() {
        let pool = DescriptorPool::decode(cnlab_proto::DESCRIPTOR_SET).unwrap();
        let descriptor = pool
            .get_message_by_name("cnlab.scheduler.v1.ListProfilesResponse")
            .unwrap();
        let message = pb::ListProfilesResponse {
            profiles: vec![pb::Profile {
                name: "h100-25pct".into(),
                vram_bytes: 20 << 30,
                ..Default::default()
            }],
        };
        let mut text = BytesMut::new();
        to_json(&descriptor, message.encode_to_vec().into(), &mut text).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let profile = &value["profiles"][0];
        assert_eq!(profile["vramBytes"], "21474836480");
        assert_eq!(profile["availableNow"], false);
        assert_eq!(profile["isolation"], "ISOLATION_CLASS_UNSPECIFIED");
        assert!(profile.get("wait").is_none());
    }
}
